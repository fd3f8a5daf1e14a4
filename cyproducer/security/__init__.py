"""TLS contexts, SASL mechanisms and credentials: who this client is, and whom it trusts."""
