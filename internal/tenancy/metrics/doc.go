// Package metrics serves the page that Prometheus reads, and health and readiness checks.
//
//	GET /metrics   the device's counters, with node_exporter's names; the usage of tenants, with ours
//	GET /healthz   200 if the loop answers
//	GET /readyz    200 if programs are served
//
// The text is written by hand, because it is a copy of existing numbers. Prometheus' client library would add 48
// packages for that.
//
// The number of series is bounded: about 50 for each tenant and network. NICs are a label only if the operator wants
// it, and at most 256 of them. The others, and deleted ones, are nic="_other". Queue pairs, addresses and processes are
// never labels: vrdma top shows them.
package metrics
