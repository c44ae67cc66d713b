// Package talk is what a test and the agent in its guest say to each other over a serial
// line: lines of JSON, requests one way and events the other.
//
//	test ── Request{ID: 7, Run: [ibv_rc_pingpong …]} ──▶ agent
//	     ◀── Event{ID: 7, Output: …}, Event{ID: 7, Output: …}, Event{ID: 7, Exit: 0}
package talk

// Request asks the agent for one thing.
type Request struct {
	ID int
	// Run starts this program.
	Run []string `json:",omitempty"`
	// Kill sends this signal to the program of this ID.
	Kill int `json:",omitempty"`
	// Listen waits until a program listens on this TCP port: one Event with Exit 0, or 1 after the agent's patience.
	Listen int `json:",omitempty"`
	// File makes an executable file of this name with this content.
	File    string `json:",omitempty"`
	Content []byte `json:",omitempty"`
}

// Event reports on a request.
type Event struct {
	ID     int
	Output []byte `json:",omitempty"`
	Exit   *int   `json:",omitempty"` // the last event; -1: ended by a signal, or never started
}
