/**
 * Runs inside the virtual machine that linux-nfsd.ts starts, on the same kernel as nfsd. Argument: the seed. Prints a
 * table of all runs. The last line of output is the result.
 */

import { AssertionError } from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { release } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { setTimeout as delay } from 'node:timers/promises';
import { stripVTControlCharacters } from 'node:util';
import { startReplayingProxy } from '#testing/replaying-proxy.ts';
import * as cases from '#testing/resend-cases.ts';
import {
  creatingMutations,
  dataMutations,
  type Mutation,
  mutations,
  removingMutations,
} from '#testing/resend-mutations.ts';
import { seededRandom } from '../crash/seeded-random.ts';
import {
  connect,
  type Disturbances,
  disturbances,
  nfsd,
  openTestDirectory,
  restartNfsd,
  secondAddress,
} from './nfsd-clients.ts';
import { holdByTurns, releaseAcrossFailOver } from './nfsd-locks.ts';
import { runWorkload } from './nfsd-workload.ts';

const seed = Number(process.argv[2] ?? 1);
const shortHandles = '/srv/ext4';
const longHandles = '/srv/xfs/below';
/** nfsd does not cache replies to CREATE and SYMLINK in this export. */
const longestHandles = '/srv/xfs/checked';
/** The limit for one sequence. The client repeats a resent call after 5, 10 and 20 s while the server executes it. */
const trialLimitMs = 5 * 60_000;

/** nfsd restarts after this many changes. */
const changesPerRestart = 100;

interface Row {
  readonly what: string;
  /** `window`: the sequence violated the rule in a way that the design document describes. */
  readonly result: 'passed' | 'FAILED' | 'window';
  readonly seconds: string;
  readonly detail: string;
}

const rows: Row[] = [];

async function runTrial(
  what: string,
  work: () => Promise<unknown>,
  resultOnViolation: 'FAILED' | 'window' = 'FAILED',
): Promise<void> {
  const since = performance.now();
  const late = new AbortController();
  const addRow = (result: Row['result'], detail: string): void => {
    const seconds = ((performance.now() - since) / 1000).toFixed(1);
    rows.push({ what, result, seconds, detail });
    console.log(`${result}  ${what} (${seconds} s) ${detail}`);
  };
  try {
    const limit = delay(trialLimitMs, undefined, { signal: late.signal }).then(() => {
      throw new Error('it did not end in time');
    });
    const detail = await Promise.race([work(), limit]);
    addRow('passed', typeof detail === 'string' ? detail : '');
  } catch (cause) {
    if (resultOnViolation === 'FAILED') console.log(cause);
    const isViolation = cause instanceof AssertionError;
    addRow(
      isViolation ? resultOnViolation : 'FAILED',
      cause instanceof Error ? onOneLine(cause.message) : String(cause),
    );
  } finally {
    late.abort();
  }
}

const onOneLine = (text: string): string => stripVTControlCharacters(text).replaceAll(/\s+/g, ' ').slice(0, 120);

async function runSequences(
  exported: string,
  resultOnViolation: (mutation: Mutation) => 'FAILED' | 'window',
): Promise<void> {
  await runTrial(`${exported}: file handles`, async () => {
    using nodes = await openTestDirectory(exported);
    const { handle } = await nodes.b.create(nodes.directory, 'file', { mode: 'guarded', set: {} });
    const { handle: folder } = await nodes.b.mkdir(nodes.directory, 'folder', {});
    return `${handle.length} bytes, of directories ${folder.length}`;
  });
  for (const mutation of mutations) {
    await runTrial(
      `${exported}: ${mutation.name}: reply lost, node B goes on before the resend`,
      async () => {
        using nodes = await openTestDirectory(exported);
        await cases.loseReply(nodes, mutation);
      },
      resultOnViolation(mutation),
    );
    await runTrial(
      `${exported}: ${mutation.name}: first copy runs after the second was answered`,
      async () => {
        using nodes = await openTestDirectory(exported);
        await cases.delayFirstCopy(nodes, mutation);
      },
      resultOnViolation(mutation),
    );
  }
}

async function runRefusals(): Promise<void> {
  for (const mutation of creatingMutations)
    await runTrial(`${mutation.name}: the name exists, and node B removes it before the resend`, async () => {
      using nodes = await openTestDirectory(shortHandles);
      await cases.refuseExisting(nodes, mutation);
    });
}

async function runRestarts(): Promise<void> {
  for (const mutation of removingMutations.slice(0, 1))
    await runTrial('the question whether nfsd restarted changes nothing', async () => {
      using nodes = await openTestDirectory(shortHandles);
      await cases.restartProbeHasNoEffect(nodes, mutation);
    });
  for (const mutation of removingMutations) {
    await runTrial(`${mutation.name}: nfsd restarts after it, node B goes on before the resend`, async () => {
      using nodes = await openTestDirectory(shortHandles);
      await cases.restartAfter(nodes, mutation, restartNfsd);
    });
    await runTrial(`${mutation.name}: nfsd restarts before it`, async () => {
      using nodes = await openTestDirectory(shortHandles);
      await cases.restartBefore(nodes, mutation, restartNfsd);
    });
    await runTrial(`${mutation.name}: nfsd restarts after it, and node A does not know its verifier`, async () => {
      using nodes = await openTestDirectory(shortHandles, { stallMs: 2_000 });
      await cases.loseReplyWithoutVerifier(nodes, mutation, restartNfsd);
    });
    await runTrial(`${mutation.name}: nfsd does not restart, and node A does not know its verifier`, async () => {
      using nodes = await openTestDirectory(shortHandles, { stallMs: 2_000 });
      await cases.loseReplyWithoutVerifier(nodes, mutation);
    });
    await runTrial(`${mutation.name}: reply lost on a connection on which nothing was written`, async () => {
      using nodes = await openTestDirectory(shortHandles, { connections: 2 });
      await cases.loseReplyOnSecondConnection(nodes, mutation);
    });
  }
}

async function runFailOvers(): Promise<void> {
  for (const mutation of removingMutations) {
    await runTrial(`${mutation.name}: node B goes on before node A fails over`, async () => {
      using other = await startReplayingProxy(nfsd, secondAddress);
      using nodes = await openTestDirectory(shortHandles, { stallMs: 2_000, moreAddresses: [other] });
      await cases.failOver(nodes, mutation, other);
    });
    await runTrial(`${mutation.name}: another process takes the port`, async () => {
      using nodes = await openTestDirectory(shortHandles, { stallMs: 2_000 });
      await cases.takePort(nodes, mutation);
    });
  }
}

/** The known gaps of docs/designs/nfs-resends.md that can be reproduced. They don't affect the result. */
async function runKnownGaps(): Promise<void> {
  for (const mutation of [...dataMutations, ...creatingMutations])
    await runTrial(
      `${mutation.name}: node B goes on before node A fails over`,
      async () => {
        using other = await startReplayingProxy(nfsd, secondAddress);
        using nodes = await openTestDirectory(shortHandles, { stallMs: 2_000, moreAddresses: [other] });
        await cases.failOver(nodes, mutation, other);
      },
      'window',
    );
}

const sumOfCounts = (all: readonly Disturbances['counts'][]): string =>
  (['cut before the call', 'lose the reply', 'run the first copy late'] as const)
    .map((kind) => `${kind}: ${all.reduce((sum, counts) => sum + counts[kind], 0)}`)
    .join(', ');

async function runClients(
  steps: number,
  { late, onChange }: { readonly late: boolean; readonly onChange?: (left: number) => void },
): Promise<string> {
  using nodes = await openTestDirectory(shortHandles);
  using opened = new DisposableStack();
  const all = [0, 1].map((i) => disturbances(seededRandom(seed + i), { late }));
  const clients = [];
  for (const [i, disturbed] of all.entries()) {
    const proxy = opened.use(await startReplayingProxy(nfsd, { ...disturbed, source: `127.0.0.${20 + i}` }));
    clients.push(opened.use(connect({ addresses: [proxy] })));
  }
  const { directory, folder } = nodes;
  await runWorkload({
    clients,
    directory,
    folder,
    steps,
    random: seededRandom(seed + 2),
    ...(onChange && { onChange }),
  });
  return `${steps} changes; ${sumOfCounts(all.map(({ counts }) => counts))}`;
}

async function runClientsWithRestarts(steps: number): Promise<string> {
  let restarts = 0;
  let restarting = Promise.resolve();
  const onChange = (left: number): void => {
    if (left % changesPerRestart !== 0) return;
    restarts++;
    restarting = restarting.then(restartNfsd);
  };
  const summary = await runClients(steps, { late: false, onChange });
  await restarting;
  return `${summary}, restarts: ${restarts}`;
}

async function runLocks(): Promise<void> {
  const newLockFolder = (): string => join(shortHandles, `locks-${randomUUID()}`);
  await runTrial('store locks: three hosts take one by turns across cut connections', async () => {
    const { held, refused, cuts } = await holdByTurns(newLockFolder(), seed, 60);
    return `held ${held} times, tried again ${refused} times; ${sumOfCounts(cuts)}`;
  });
  await runTrial('store locks: a host fails over while it releases one', () => releaseAcrossFailOver(newLockFolder()));
}

console.log(`kernel ${release()}`);
await runSequences(shortHandles, () => 'FAILED');
await runSequences(longHandles, () => 'FAILED');
await runSequences(longestHandles, ({ name }) => (/^(CREATE|SYMLINK)$/.test(name) ? 'window' : 'FAILED'));
await runRefusals();
await runRestarts();
await runFailOvers();
await runTrial('two clients, cut connections and late copies', () => runClients(1_500, { late: true }));
await runTrial('two clients, cut connections and restarts of nfsd', () => runClientsWithRestarts(1_000));
await runLocks();
await runKnownGaps();

const width = Math.max(...rows.map(({ what }) => what.length));
console.log(`\n${'sequence'.padEnd(width)}  result  seconds  detail`);
for (const { what, result, seconds, detail } of rows)
  console.log(`${what.padEnd(width)}  ${result}  ${seconds.padStart(7)}  ${detail}`);
const countRows = (wanted: Row['result']): number => rows.filter(({ result }) => result === wanted).length;
const failed = countRows('FAILED');
console.log(`${countRows('passed')} passed, ${failed} failed, ${countRows('window')} documented windows seen`);
console.log(failed === 0 ? 'RESULT good' : 'RESULT bad');
writeFileSync('/proc/sysrq-trigger', 'o');
