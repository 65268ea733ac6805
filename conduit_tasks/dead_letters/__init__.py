"""Records that could not be delivered: where they are kept, chosen, marked and moved (SEMANTICS C14, X2, X4)."""
