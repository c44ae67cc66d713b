// Package ib is the vocabulary of InfiniBand that every room uses: addresses (GID),
// packet sequence numbers, queue pair numbers, transport services, states, access rights
// and attribute masks, and the time on a loop's clock.
//
// Numbers that the kernel's ABI has are taken from package abi, where they are checked
// against the C headers, and given a type here. The package holds words and their
// arithmetic, no state and no behaviour.
package ib
