import type { Address } from './connection.ts';
import type { Procedure, ServerVerifier } from './procedure.ts';
import type { Call } from './transport.ts';

/** The last write verifier that the server at one address has reported. */
export interface KnownVerifier {
  verifier: bigint | undefined;
}

/** A call that changes nothing, and whose reply has the server's verifier. */
export interface VerifierQuery {
  readonly procedure: Procedure<unknown, unknown>;
  readonly args: unknown;
  /** Undefined: the transport's own. */
  readonly credential: Buffer | undefined;
}

/**
 * The verifiers that the server has reported on all connections of a client. A connection without a WRITE learns the verifier
 * from the others.
 */
export interface Verifiers {
  forAddress(address: Address): KnownVerifier;
  /** Call it for each reply that has a verifier. */
  record(known: KnownVerifier, verifier: bigint, source: ServerVerifier, call: Call): void;
  /** Calls that return the verifier, the best one first. */
  queries(): readonly VerifierQuery[];
}

/** Keep several files, since a pending REMOVE may remove the file that was written last. */
const maxQueryFiles = 4;

export function createVerifiers(): Verifiers {
  const byAddress = new Map<Address, KnownVerifier>();
  const files: {
    readonly source: ServerVerifier;
    readonly queryTarget: unknown;
    readonly credential: Buffer | undefined;
  }[] = [];
  let latest = 0;

  return {
    forAddress: (address) => {
      const known = byAddress.get(address) ?? { verifier: undefined };
      byAddress.set(address, known);
      return known;
    },
    record: (known, verifier, by, call) => {
      if (known.verifier !== verifier) known.verifier = verifier;
      const witness = by.queryTarget(call.args);
      if (files[latest]?.queryTarget === witness) return;
      latest = files.length < maxQueryFiles ? files.length : (latest + 1) % maxQueryFiles;
      files[latest] = { source: by, queryTarget: witness, credential: call.credential };
    },
    queries: () => {
      const latestFirst = [...files.slice(0, latest + 1).toReversed(), ...files.slice(latest + 1).toReversed()];
      return latestFirst.map(({ source: by, queryTarget: witness, credential }) => ({
        ...by.query(witness),
        credential,
      }));
    },
  };
}
