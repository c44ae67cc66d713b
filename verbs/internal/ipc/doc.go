// Package ipc is how a Go program reaches the device: through the daemon's socket, or the kernel's
// files. Both take the kernel's commands and share rings of one layout with the program; everything
// above is the same.
package ipc
