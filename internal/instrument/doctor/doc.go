// Package doctor examines what this machine can do for experiments, and says what is missing.
//
// A check is data: a name, the suites that need it, and a function that looks. It has one of three outcomes: present, missing,
// or unknown. A missing feature comes with what to do. Checks that have to try something (a namespace, a queueing discipline, a
// tunnel device) do so in a network namespace of their own, which ends with its process.
//
//	All ──▶ Check.look(Machine) ──▶ Finding {outcome, what was found, what to do}
//
// ExaminePeer does the same on another machine and compares the two. It copies the program there, which then is an Answerer:
//
//	here: ExaminePeer ──ssh──▶ there: vrdma doctor --answer ──▶ greeting {findings, ports, token}
//	      between      ──TCP, UDP 4791, packets of growing size──▶ echo
//
// cmd/vrdma calls it. It changes nothing. No check takes more than a few seconds, but for the trial boot under KVM, which takes ten at most.
package doctor
