// Package ib defines the InfiniBand types that all packages share: addresses (GID), packet sequence numbers,
// queue pair numbers, transport services, states, access rights and attribute masks, and the loop's time.
//
// Numbers of the kernel's ABI come from package abi, where tests compare them with the C headers; here they
// get a type. The package has types and arithmetic, but no state.
package ib
