"""Who owns which KV block. Ids only: no memory, no tensors."""
