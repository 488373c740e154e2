# Everything that a newcomer needs; the work is done by cargo and by `lockify` itself.

CARGO ?= cargo
LOCKIFY = target/release/lockify

.PHONY: run test bench lint ci release

# A real cluster on this machine creates a tree: what does a creation cost?
run: release
	$(LOCKIFY) demo $(ARGS)

# Unit and integration tests. Release-like optimisation is in the dev profile already.
test:
	$(CARGO) test --workspace --locked

bench: release
	$(LOCKIFY) bench $(ARGS)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

ci:
	.ci/run

release:
	$(CARGO) build --release --locked -p lockify-cli
