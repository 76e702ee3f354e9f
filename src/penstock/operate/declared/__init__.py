"""JetStream's streams, consumers and key-value buckets as declared state: files say what should be, a plan says what
that takes, and nothing is deleted without permission. `files.load`, `live.look`, `plan.plan`, `apply.apply`.
"""
