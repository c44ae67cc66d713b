package tenant

// Bytes is an amount of memory or data; a file says 4096, 64Ki, 4Gi, 10M.
type Bytes uint64

// BitRate is bits a second; a file says 1Gbit, 500Mbit, 10Gbit.
type BitRate uint64
