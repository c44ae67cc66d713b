// Package netns makes sockets and interfaces in network namespaces that the daemon is not in.
//
//	a program's connection ── Of ──▶ Space ── Open ──▶ sockets that stay in the namespace
//
// A socket belongs to the namespace in which it was made, whoever has it: so the daemon needs to be
// there for that moment only. What it can do with the sockets afterwards (bind, send, ask netlink) needs
// no rights.
//
// Which namespace it is says the kernel, of the socket that the program connected with (SIOCGSKNS): no
// process number is looked up, and what is asked cannot be exchanged meanwhile. Each socket is asked for
// the namespace's cookie before it is handed out.
//
// To enter a namespace one needs CAP_SYS_ADMIN in the user namespace that it belongs to and in one's own.
// Root has both. An ordinary user's daemon has the first, for the user's own containers: there a
// helper (Serve) is started by nsenter(1), which enters the user namespace and then the network namespace, and hands
// the sockets back.
//
// A Space, and every socket made in it, keeps the namespace alive: close both when nobody of it is left.
package netns
