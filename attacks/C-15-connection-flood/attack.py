# As many connections as there can be: opened and held, then opened and dropped.
held, refusals, opened = [], 0, 0
for number in range(int(sys.argv[1])):
    try:
        stream = tunnel("good.example:2222")
        held.append(stream)
        opened += 1
    except OSError:
        refusals += 1
print("held", len(held), "refused", refusals, flush=True)
for stream in held:
    stream.close()
time.sleep(0.5)
dropped = 0
for number in range(int(sys.argv[2])):
    try:
        tunnel("good.example:2222").close()
        dropped += 1
    except OSError:
        pass
print("dropped", dropped, flush=True)
done()
