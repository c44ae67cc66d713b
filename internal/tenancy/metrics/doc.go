// Package metrics is the page that Prometheus reads, and health and readiness beside it.
//
//	GET /metrics   what the device counts, in node_exporter's names; what tenants use, in ours
//	GET /healthz   200 if the loop answers
//	GET /readyz    200 if programs are served
//
// The text is written by hand. It is a copy of numbers that are there already, and Prometheus'
// client library would be 1.4 MB and 48 packages more for that.
//
// The number of series is bounded: about 50 a tenant and network. NICs are a label only if an
// operator wants it, and 256 of them at most; the others, and those that are gone, are
// nic="_other". Queue pairs, addresses and processes are never labels: vrdma top shows them.
package metrics
