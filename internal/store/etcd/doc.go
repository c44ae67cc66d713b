// Package etcd is a store in etcd, for the daemons of many hosts. No type of etcd's leaves it, and
// only the daemon's main package imports it: the client is half of the program's size.
package etcd
