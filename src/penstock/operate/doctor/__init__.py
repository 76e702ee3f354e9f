"""What works and what does not, and how to mend it: facts from servers, and findings as pure functions of them."""
