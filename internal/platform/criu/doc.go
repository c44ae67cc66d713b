// Package criu is what CRIU's plugin runs when podman moves a container: it makes the NICs of the container's programs leave
// this host, stay, or arrive, and keeps their sealed states in CRIU's image directory.
//
//	dump     Leave: the programs let go ─▶ states in the images ─▶ Settle: CRIU has ended; NICs of living programs stay
//	restore  Arrive: states from the images ─▶ the daemon, which waits for the programs
package criu
