"""What an author of a connector imports: the contract, and one of each thing that connectors need."""
