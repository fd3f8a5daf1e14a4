"""Connections: sockets, TLS, proxies, names. Knows neither the sender nor the control plane's clients."""
