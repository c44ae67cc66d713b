// Package armcheck checks the protocol by which a program asks for an event at the next
// completion, and sleeps. It is a model of it, in tests only: threads that take one step at a
// time over shared words, and a search through every order in which they can take them.
//
//	program                                  daemon
//	arm    fetch-and-or of a bit             write    the completion, then the producer's index
//	ask    load the indices and the notes;   look     load the arm word
//	       if there is something: a command  note     the consumer's index, if it matches
//	poll   load the producer's index         clear    fetch-and-and of the bits
//	sleep  read the channel                  report   one event to the channel
//
// A program polls after it has armed, or before. A wake-up is lost if everybody sleeps, no event is
// under way, and a queue holds a completion that it is armed for. None is, because arm and ask, and write
// and look, have a fence between them. Then either look sees the bit, or ask sees the index, and the daemon
// reports what it finds. An arm gives one event at most.
//
// The search (machine_test.go) knows four kinds of memory: sequentially consistent; with a
// store buffer for each thread (x86), where a missing fence shows; with store buffers in
// which stores to different words pass each other, where a missing release shows; and, in addition, with
// loads that are made before earlier steps (arm64), where a missing acquire shows, and a missing fence behind an
// atomic read-modify-write. The simulation makes loads in order. The lock around a poll, the provider's or the program's own, makes the
// consumer index visible to the next thread that polls. It is a fence on x86; here it orders nothing else.
//
// The threads (protocol_test.go): one to three that arm, poll and sleep, on one or two queues
// of one channel, for all completions, for solicited ones or in turn; the daemon, which makes
// completions one a pass or all in one; one that resizes the queue, so that its ring moves; one
// that destroys it, waits for the acknowledgements, and makes another with the same handle; one
// that traces, so that arms have to be commands. A thread that is stopped, or killed, is one
// that takes no step for long, or none any more: the daemon waits for nobody.
//
// Every mistake that was thought of is made on purpose (TestWrongProtocols), and must be found.
// What is too large to be searched is run by random schedules: TestSimulatedRaces, some 10^6
// races, or as many as -races or VRDMA_RACES says. A fault is told as the order of steps that
// leads to it.
//
// # The other protocols
//
// A second machine (weak_test.go) searches the other protocols between the interposer and the daemon: the doorbell, the threads that sleep
// instead of polling, the rings, the mailbox, the answers ahead and the shelf. Each has a test file of its own. This machine knows
// sequential memory, tso and rmo, and needs no hint which loads may be early or late. TestLitmus compares it with the usual litmus tests.
// For each fence, acquire and release that a protocol needs there is a form without it, and the search must find its fault.
//
// The package imports nothing of ours, and nothing imports it. What the code does is in internal/device/nic and
// shim/protocol.h; the same races with real programs are TestWakeups in test.
package armcheck
