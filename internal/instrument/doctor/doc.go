// Package doctor examines what this machine can do for experiments, and says what is missing.
//
// A probe is data: a name, the suites that need it, and a function that looks. It has one of three outcomes: present, missing,
// or unknown. A missing feature comes with what to do. Probes that have to try something (a namespace, a queueing discipline, a
// tunnel device) do so in a network namespace of their own, which ends with its process.
//
//	All ──▶ Probe.look(Machine) ──▶ Finding {outcome, what was found, what to do}
//
// cmd/vrdma calls it. It changes nothing, and no probe takes more than a few seconds.
package doctor
