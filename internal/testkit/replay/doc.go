// Package replay tests the transport against captures of the Linux kernel's rxe. One of our queue pairs replaces one side of every
// golden conversation: it receives what that side received, and its application posts the same requests. It must send the same
// packets as rxe, byte by byte.
//
//	capture:  Y ──▶ X    fed to our queue pair ──┐
//	          X ──▶ Y    expected of it     ◀────┘ compared
//
// The package has tests only.
package replay
