"""Operating JetStream: streams as declared state, checks, migration, benchmarks, figures. Needs no Spark."""
