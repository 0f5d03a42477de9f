import { glob, readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import { harmlessReasons, inShortByReason } from '#core/error-disclosure.ts';
import { refusalReasons } from '#core/refusals.ts';
import { type Failure, failuresIn } from './errors.ts';
import { parse, type Source } from './syntax.ts';

// Who is told what goes wrong: decided for every reason in the sources.

const words = (text: string): string[] => text.trim().split(/\s+/);

/** Said in short to those who are not administrators: their texts name servers, exports, paths, devices, processes. */
const inShort = words(`
  agent-account-other agent-answer agent-answer-unreadable agent-lost agent-no-answer agent-node-unknown agent-not-serving agent-protocol-other pod-address-invalid pod-network-ambiguous pod-network-tool-missing pod-network-unknown pod-network-unreadable block-mode command-deadline container-networks-several container-not-running container-without-network engine-answer engine-denied engine-network-hidden
  engine-network-missing engine-place-unknown engine-refused engine-unknown engine-unreachable keeper-container-impossible keeper-place-unknown
  keeper-pod-missing keeper-pod-network keeper-pod-ports keeper-pod-upgrade mount-held
  data-missing data-path-full data-path-moving data-path-unavailable data-unwritten data-wrong-kind directory-unrecorded
  file-too-large fuse-missing mount-unanswered source-port-taken tls-file-unreadable
  filesystem-damaged filesystem-unknown folder-occupied format-newer grow-failed grow-needs-unmount image-busy internal
  layout-differs loop-deadline loop-detaching loop-no-answer loop-read-only loop-unavailable mkfs-failed mount-busy mount-denied mount-failed mount-flags-refused
  mount-occupied mount-unable mount-vanished mounted-read-only mounts-exhausted mounts-folder-missing not-adoptable
  owner-denied path-missing path-moved path-no-answer record-unreadable source-read-only state-corrupt state-denied
  state-full state-io state-locked state-newer state-read-only store-cannot-move store-closing store-damaged
  store-file-system-read-only store-full store-identity store-in-use store-io-error store-local-elsewhere
  store-lock-irregular store-locked store-not-on-node store-option-in-cluster store-option-invalid store-option-unknown store-overlaps store-permission
  store-place-taken store-quota store-records-foreign store-root-changed store-root-missing store-root-not-directory
  store-shared-elsewhere store-uri-invalid system-table-too-large target-forbidden target-kind too-many-open-files
  tool-missing tool-not-started volume-data-busy volume-data-unusable volume-in-use volume-in-use-elsewhere
  volume-served-on volume-use-unknown operation-pending store-not-configured`);

/** Only ever said by the command line, or before the server listens. */
const neverSent = words(`
  answer-unreadable config-invalid config-missing config-unreadable confirmation-required door-address-unknown csi-registry-alone connection-ambiguous
  connection-broken interrupted keeper-not-ready keeper-unsupported kubernetes-unconfigured listen-failed listen-invalid log-level-invalid node-name-changed node-name-invalid node-name-required number-invalid plugin-folder-unusable plugin-socket-in-use port-in-use
  revision-ambiguous server-no-answer server-not-running socket-denied socket-in-use socket-path-long socket-path-taken
  state-folder-unusable store-ambiguous token-file token-malformed trash-ambiguous trash-not-found url-credentials
  url-invalid usage account-unknown controller-unreachable kubeconfig-missing kubeconfig-unreadable kubeconfig-unusable
  command-not-in-cluster kubernetes-refused kubernetes-unreachable proxy-denied stowage-not-installed token-request-denied
  kubernetes-denied take-over-not-possible`);

/** What may stand in a harmless text: what the asker gave, names of what they may see, numbers and states. */
const filledIn = words(`
  about audience howToGet instead rule silent user access action all allow allowed at bounds bytes candidates count different down driver expected expiresIn field found group handle help host how id key kind known length
  limit maxBytes maxVolumes meaning message metaLimit method more most mostBytes mostLabels mostPerPage name node nodes now number other pair plugin ref
  reserved revision role room scheme shown squash store stores subject target text uid users verb wanted what where who word wrong namespace
  anywhere knownOptions onMany from place`);

let failures: readonly Failure[];
/** Those that stores give. */
let ofStores: readonly Failure[];

beforeAll(async () => {
  const cwd = dirname(dirname(import.meta.dirname));
  const sources: Source[] = [];
  const exclude = ['src/**/*.test.ts', 'src/testing/**', 'src/**/fixtures/**', 'src/cli/scripted-server.ts'];
  for await (const path of glob('src/**/*.ts', { cwd, exclude }))
    sources.push(parse(path, await readFile(join(cwd, path), 'utf8')));
  failures = failuresIn(sources);
  ofStores = failuresIn(sources.filter(({ path }) => path.startsWith('src/stores/')));
});

test('every reason is for everybody, or said in short, or never sent; those of NFS are always said in short', () => {
  const found = new Set(failures.map(({ reason }) => reason).filter((reason) => !reason.startsWith('nfs-')));
  expect([...harmlessReasons, ...inShort, ...neverSent].sort()).toEqual([...found].sort());
  expect([...harmlessReasons].filter((reason) => reason.startsWith('nfs-'))).toEqual([]);
});

test('every reason with which a store denies access is known to be a permission problem, whatever its code becomes', () => {
  const denied = ofStores.filter(({ code, reason }) => code === 'denied' && !harmlessReasons.has(reason));
  // Stowage does not trust the server, or something is read-only or in the way: nobody denies Stowage access. Users get a text of its own.
  const others = ['nfs-read-only', 'nfs-tls-certificate', 'store-file-system-read-only', 'store-records-foreign'];
  const inShort = [...inShortByReason.keys()];
  expect(inShort.filter((reason) => !/^(agent|pod)-/.test(reason)).sort()).toEqual(others);
  for (const reason of others) expect(denied.map((failure) => failure.reason)).toContain(reason);
  // These two may have another cause, so their code is `unavailable`.
  const expected = new Set([...denied.map(({ reason }) => reason), 'nfs-export-withheld', 'nfs-hangs-up']);
  for (const reason of others) expected.delete(reason);
  expect(expected.size).toBeGreaterThan(10);
  expect([...refusalReasons].sort()).toEqual([...expected].sort());
});

test('what is for everybody is filled in with nothing that tells of a place', () => {
  const harmless = failures.filter(({ reason }) => harmlessReasons.has(reason));
  const used = harmless.flatMap(({ reason, message, action }) =>
    Array.from(`${message} ${action}`.matchAll(/<(?:folder of )?([^<>]+)>/g), ([, word = '']) => ({ reason, word })),
  );
  // Two are about a path that the asker wrote.
  const asked = ({ reason, word }: (typeof used)[number]): boolean =>
    word === 'path' && ['path-invalid', 'path-relative'].includes(reason);
  expect(used.length).toBeGreaterThan(50);
  expect(used.filter((one) => !filledIn.includes(one.word) && !asked(one))).toEqual([]);
});
