// Package armcheck checks the protocol by which a program asks for an event at the next
// completion, and sleeps. It is a model, for tests only. Threads take one step at a time on
// shared words, and a search tries every order of these steps.
//
//	program                                  daemon
//	arm    fetch-and-or of a bit             write    the completion, then the producer's index
//	ask    load the indices and the notes;   look     load the arm word
//	       if there is something: a command  note     the consumer's index, if it matches
//	poll   load the producer's index         clear    fetch-and-and of the bits
//	sleep  read the channel                  report   one event to the channel
//
// A program polls after it has armed, or before. A wake-up is lost if all threads sleep, no event is
// under way, and an armed queue holds a completion. That cannot happen, because there is a fence between
// arm and ask, and between write and look. So either look sees the bit, or ask sees the index, and the
// daemon reports the completion. An arm gives at most one event.
//
// The search (machine_test.go) knows four kinds of memory, and each shows other mistakes:
//
//	sequentially consistent
//	a store buffer for each thread (x86)                      a missing fence
//	also: stores to different words pass each other           a missing release
//	also: loads are made before earlier steps (arm64)         a missing acquire, or a missing fence behind
//	                                                          an atomic read-modify-write
//
// The simulation makes loads in order. The lock around a poll, the provider's or the program's own, makes
// the consumer index visible to the next thread that polls. On x86 it is a fence; here it orders nothing else.
//
// The threads (protocol_test.go):
//
//   - One to three threads arm, poll and sleep, on one or two queues of one channel. They arm for all
//     completions, for solicited ones, or in turn.
//   - The daemon makes one completion a pass, or all in one.
//   - A thread resizes the queue, so that its ring moves.
//   - A thread destroys the queue, waits for the acknowledgements, and makes another with the same handle.
//   - A tracer forces arms to be commands.
//
// A stopped thread takes no step for long, a killed one takes none any more: the daemon waits for neither.
//
// TestWrongProtocols makes every known mistake on purpose, and the search must find it. TestSimulatedRaces
// runs what is too large for a search by random schedules: 10^6 races, or as many as -races or VRDMA_RACES
// says. A fault is reported as the order of steps that leads to it.
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
