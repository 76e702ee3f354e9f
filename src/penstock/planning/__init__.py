"""Where batches start and end, and what their tasks read. Pure but for questions to a source; knows no Spark."""
