"""The native executor: a program lowered to flat records, replayed by a C++ thread pool."""
