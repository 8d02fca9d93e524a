"""Model files: mapped, bounds-checked GGUF and safetensors, and their number formats."""
