// Package show prints for people, and for scripts, what daemons answer: their status, rates, usage and declared objects.
//
// Each function takes an answer and a writer. It asks no daemon and reads no flag: the subcommands of vrdma do, and call one
// function here. Text from programs, containers and other hosts is printed without control characters (Plain).
package show
