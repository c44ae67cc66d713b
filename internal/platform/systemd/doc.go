// Package systemd is the daemon's side of two protocols of systemd: sd_notify (a service reports its state) and socket
// activation (a service inherits listening sockets).
//
//	daemon ── READY=1, STATUS=…, WATCHDOG=1, RELOADING=1, STOPPING=1 ──▶ NOTIFY_SOCKET
//	daemon ◀── descriptors 3, 4 … (LISTEN_FDS, LISTEN_PID) ────────────── vrdma.socket
//
// Without systemd nothing is set in the environment, and all functions do nothing. The protocols are stable and documented in
// sd_notify(3) and sd_listen_fds(3), so the package needs no library.
package systemd
