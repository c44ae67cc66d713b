// Package kubeapi talks to the API server of Kubernetes: it reads and writes single objects, and follows
// the changes of a list. It knows no object of Kubernetes: whoever asks says what of it they read.
//
// A list is followed as every client does it:
//
//	list ──▶ everything, at version 7 ──▶ watch from 7 ──▶ changes, each with its version
//	 ▲                                        │  ▲
//	 └── 410 Gone: 7 is too long ago ─────────┘  └── the connection has ended: from the last version
//
// The server ends a watch after some minutes, by our wish, and sends a bookmark (a version without a
// change) now and then, so that the last version is a recent one also where nothing changes. A connection
// that is silent for longer than that is dead, and is closed.
//
// It is here instead of client-go because a get, a list and a watch are all that is needed: client-go is
// some forty modules.
package kubeapi
