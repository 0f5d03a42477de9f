import { spawn } from 'node:child_process';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import { errnoOf } from '#base/errno.ts';
import { asJsonObject, type JsonObject, jsonIn } from '#base/json.ts';
import { configError, KubeError } from './errors.ts';
import type { ExecEntry } from './kubeconfig.ts';
import type { ReloadableText } from './reloaded-file.ts';

/** A credential plugin of a kubeconfig, such as those of cloud providers. */
export interface CredentialPlugin extends ExecEntry {
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly server: string;
  readonly ca: ReloadableText | undefined;
}

export interface Credential {
  readonly token: string | undefined;
  readonly cert: string | undefined;
  readonly key: string | undefined;
}

interface IssuedCredential {
  readonly credential: Credential;
  /** Wall-clock time; infinite if the plugin does not say. */
  readonly expiresAt: number;
}

const pluginTimeoutMs = 60_000;
const maxOutputBytes = 1 << 20;
/** How long before its expiry a credential is renewed, so that it does not expire while a call is in flight. */
const renewBeforeExpiryMs = 10_000;

/**
 * Runs the plugin if there is no credential, or if it has expired or was rejected. Concurrent callers wait for the same run. The
 * output is a credential, so it never appears in logs or errors, nor do the plugin's arguments and environment.
 */
export function createExecCredential(
  plugin: CredentialPlugin,
  clock: Clock,
): (signal: AbortSignal, isRefused: boolean) => Promise<Credential> {
  let last: IssuedCredential | undefined;
  let currentRun: Promise<IssuedCredential> | undefined;

  async function runPlugin(signal: AbortSignal): Promise<IssuedCredential> {
    using limit = clock.deadline(pluginTimeoutMs, signal);
    const issued = parseCredential(await pluginOutput(plugin, limit.signal), plugin);
    last = issued;
    return issued;
  }

  return async (signal, isRefused) => {
    const isValid = last !== undefined && !isRefused && clock.now() < last.expiresAt - renewBeforeExpiryMs;
    if (isValid && last !== undefined) return last.credential;
    for (;;) {
      if (currentRun === undefined) {
        currentRun = runPlugin(signal).finally(() => {
          currentRun = undefined;
        });
        return (await currentRun).credential;
      }
      try {
        return (await currentRun).credential;
      } catch (thrown) {
        // The caller that started the run canceled it; this caller tries again.
        if (signal.aborted || !(thrown instanceof KubeError) || thrown.failure !== 'canceled') throw thrown;
      }
    }
  };
}

async function pluginOutput(plugin: CredentialPlugin, signal: AbortSignal): Promise<string> {
  const info = {
    apiVersion: plugin.apiVersion,
    kind: 'ExecCredential',
    spec: { interactive: false, ...(plugin.wantsCluster ? { cluster: await clusterInfo(plugin) } : {}) },
  };
  const env = { ...plugin.environment, ...plugin.env, KUBERNETES_EXEC_INFO: JSON.stringify(info) };
  const child = spawn(plugin.command, plugin.args, {
    env,
    signal,
    stdio: ['ignore', 'pipe', 'ignore'],
    windowsHide: true,
  });
  const { promise: end, resolve, reject } = Promise.withResolvers<number | null>();
  child.on('error', reject).on('close', resolve);
  try {
    const [text, status] = await Promise.all([textOf(child.stdout, plugin), end]);
    if (status !== 0) throw pluginFailed(plugin, status === null ? '' : ` with status ${status}`);
    return text;
  } catch (thrown) {
    // Use SIGKILL, since a plugin may ignore other signals and nothing waits for its end.
    child.kill('SIGKILL');
    // Child processes of the plugin may still have the pipe open.
    child.stdout.destroy();
    throw failureOf(thrown, plugin, signal);
  }
}

async function textOf(stream: AsyncIterable<Uint8Array>, plugin: CredentialPlugin): Promise<string> {
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of stream) {
    length += chunk.length;
    if (length > maxOutputBytes) throw configError(`the credential plugin ${plugin.command} does not stop printing`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

const pluginFailed = ({ command }: CredentialPlugin, detail: string): KubeError =>
  configError(`the credential plugin ${command} failed${detail}: run it to see why`);

async function clusterInfo({ server, ca }: CredentialPlugin): Promise<object> {
  const authority = await ca?.(false);
  const data =
    authority === undefined ? {} : { 'certificate-authority-data': Buffer.from(authority).toString('base64') };
  return { server, ...data };
}

/** Does not keep the original error as the cause, since it contains the plugin's arguments. */
function failureOf(thrown: unknown, plugin: CredentialPlugin, signal: AbortSignal): KubeError {
  const what = `the credential plugin ${plugin.command}`;
  if (signal.aborted) {
    const cause: unknown = signal.reason;
    const isLate = cause instanceof DeadlineExceeded;
    return new KubeError(`${what} ${isLate ? 'has not ended in time' : 'was cancelled'}`, {
      failure: isLate ? 'deadline' : 'canceled',
      cause,
    });
  }
  if (thrown instanceof KubeError) return thrown;
  const code = errnoOf(thrown) ?? '';
  if (code === 'ENOENT') return configError(`${what} is not installed. ${plugin.installHint}`.trim());
  return pluginFailed(plugin, code === '' ? '' : ` (${code})`);
}

function parseCredential(text: string, { command, apiVersion }: CredentialPlugin): IssuedCredential {
  const what = `the credential plugin ${command}`;
  const answer = asJsonObject(jsonIn(text));
  if (answer === undefined || answer['apiVersion'] !== apiVersion || answer['kind'] !== 'ExecCredential')
    throw configError(`${what} did not answer with an ExecCredential of ${apiVersion}`);
  const status = asJsonObject(answer['status']) ?? {};
  const credential = {
    token: textIn(status, 'token'),
    cert: textIn(status, 'clientCertificateData'),
    key: textIn(status, 'clientKeyData'),
  };
  if ((credential.cert === undefined) !== (credential.key === undefined))
    throw configError(`${what} answered with only one of certificate and key`);
  if (credential.token === undefined && credential.cert === undefined)
    throw configError(`${what} answered with neither a token nor a certificate`);
  const until = textIn(status, 'expirationTimestamp');
  const expiresAt = until === undefined ? Number.POSITIVE_INFINITY : Date.parse(until);
  if (Number.isNaN(expiresAt)) throw configError(`${what} answered with an expirationTimestamp that is no time`);
  return { credential, expiresAt };
}

function textIn(from: JsonObject, field: string): string | undefined {
  const value = from[field];
  return typeof value === 'string' && value !== '' ? value : undefined;
}
