// Package demo has the demonstrations of `vrdma demo`. Speed compares RDMA through vrdma with TCP, on one host and on two. Networks
// shows virtual networks between two hosts. Migrate moves a running container between two hosts.
package demo
