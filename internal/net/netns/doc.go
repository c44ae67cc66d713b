// Package netns creates sockets and interfaces in network namespaces other than the daemon's.
//
//	a program's connection ── Of ──▶ Space ── Open ──▶ sockets that stay in the namespace
//
// A socket belongs to the namespace in which it was created, whichever process has it. So the daemon needs to be in the namespace
// only for that moment. Using the sockets afterwards (bind, send, netlink requests) needs no privileges.
//
// The kernel returns the namespace of the socket that the program connected with (SIOCGSKNS). So no process number is involved, and
// the namespace cannot be exchanged meanwhile. The cookie of each new socket's namespace is checked before use.
//
// Entering a namespace needs CAP_SYS_ADMIN in the user namespace that owns it and in the caller's own. Root has both. A daemon of an
// ordinary user has the first one for the user's own containers. There nsenter(1) starts a helper (Serve) in the user namespace and
// the network namespace, and the helper sends the sockets back.
//
// A Space and every socket created in it keep the namespace alive: close both when the namespace has no clients any more.
package netns
