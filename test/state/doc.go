// Package state has the tests of daemons that share a store in a real etcd.
package state
