"""Networks of the tables: small ones of every kind, made from a seed."""
