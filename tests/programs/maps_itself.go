// Maps 64 MiB itself, past the runtime.
package main

import "syscall"

//go:noinline
func grab() []byte {
	mine, err := syscall.Mmap(-1, 0, 64<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	mine[3] = 1
	return mine
}

func main() {
	if len(grab()) == 0 {
		panic("empty")
	}
}
