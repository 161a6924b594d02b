// Six threads that C code has used live on, each locked to a goroutine; three have ended.
package main

/*
#include <stdlib.h>
static void *touch(int n) { return malloc(n); }
*/
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
)

func main() {
	ready := make(chan bool)
	for i := 0; i < 9; i++ {
		last := i >= 6
		go func() {
			runtime.LockOSThread()
			C.touch(100)
			ready <- true
			// a goroutine that ends locked takes its thread along
			if !last {
				select {}
			}
		}()
	}
	for i := 0; i < 9; i++ {
		<-ready
	}
	fmt.Println("READY")
	bufio.NewReader(os.Stdin).ReadString('\n')
}
