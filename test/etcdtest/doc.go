// Package etcdtest runs Debian's etcd for tests: one or three members on loopback, with TLS,
// certificates made for the occasion, and etcd's own authentication with the role that
// docs/how-to/etcd.md gives to daemons. Members can be killed, stopped, started again and wiped; clients can be
// cut off. Everything ends with the test.
package etcdtest
