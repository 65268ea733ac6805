"""HTTP: requests per record, polled pages, and the guards of whatever calls an address."""
