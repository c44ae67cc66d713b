// Package doctor says what this machine can do for experiments, and why not.
//
// A probe is data: a name, what it is needed for, and a function that looks. It has one of three
// outcomes: the thing is there, it is not, or that could not be found out. What is not there comes
// with what to do. Probes that have to try (a namespace, a queueing discipline, a tunnel device) try
// in a network namespace of their own, which goes with its process.
//
//	All ──▶ Probe.look(Machine) ──▶ Finding {outcome, what was found, what to do}
//
// Called by cmd/vrdma. It changes nothing, and no probe takes more than a few seconds.
package doctor
