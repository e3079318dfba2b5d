-- For wrk: post one task again and again; at the end one line of JSON.
wrk.method = "POST"
wrk.body = os.getenv("BENCH_BODY")
wrk.headers["Authorization"] = "Bearer " .. os.getenv("BENCH_KEY")
wrk.headers["Content-Type"] = "application/json"

function done(summary, latency)
   local errors = summary.errors
   local wrong = errors.connect + errors.read + errors.write + errors.status + errors.timeout
   io.write(string.format('{"requests": %d, "seconds": %f, "errors": %d, "p50_ms": %f, "p99_ms": %f}\n',
      summary.requests, summary.duration / 1e6, wrong, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
