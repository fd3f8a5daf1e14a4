"""The sender loop, connections and protocol: the only package that uses sockets, threads and clocks."""
