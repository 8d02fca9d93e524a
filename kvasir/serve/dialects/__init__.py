"""One file for each way of clients to say a request and to be answered."""
