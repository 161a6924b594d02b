# 256 fibres, each of which has begun; four threads that live on.
fibres = Array.new(256) { Fiber.new { Fiber.yield }.tap(&:resume) }
threads = Array.new(4) { Thread.new { sleep } }
Thread.pass until threads.all?(&:stop?)
puts "READY"
$stdout.flush
gets
exit!(fibres.size == 256)
