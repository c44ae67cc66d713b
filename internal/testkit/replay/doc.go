// Package replay holds the transport against recordings of the Linux kernel's rxe: one
// end of every golden conversation is taken over by one of our queue pairs, which is fed
// what that end received and asked to do what its application asked for. What it sends
// then must be, packet by packet and byte by byte, what rxe sent.
//
//	capture:  Y ──▶ X    fed to our queue pair ──┐
//	          X ──▶ Y    expected of it     ◀────┘ compared
//
// There is nothing here but the test.
package replay
