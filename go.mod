module vrdma

go 1.26
