// Package kubeapi talks to the API server of Kubernetes: it reads and writes single objects, and follows the changes of
// a list. It knows no types of Kubernetes: its callers define the fields that they read.
//
// It follows a list as every client does:
//
//	list ──▶ everything, at version 7 ──▶ watch from 7 ──▶ changes, each with its version
//	 ▲                                        │  ▲
//	 └── 410 Gone: 7 is too long ago ─────────┘  └── the connection has ended: from the last version
//
// The server ends a watch after some minutes, as the client requests. It sends a bookmark (a version without a change)
// now and then, so that the last version is recent even if nothing changes. The client closes a connection that is
// silent for longer.
//
// The package exists because a get, a list and a watch suffice: client-go consists of some forty modules.
package kubeapi
