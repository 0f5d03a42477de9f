import { readFile } from 'node:fs/promises';
import { Agent, request } from 'node:https';
import { text } from 'node:stream/consumers';

const answerTimeoutMs = 10_000;

/** GET as the cluster's administrator; returns the body. Much cheaper than kubectl, so polling can use it. */
export type ApiGet = (path: string, signal: AbortSignal) => Promise<string>;

export interface ApiAccess {
  readonly host: string;
  readonly port: number;
  /** Paths of files. */
  readonly authority: string;
  readonly certificate: string;
  readonly key: string;
}

export async function createApiGet({ host, port, ...files }: ApiAccess): Promise<ApiGet> {
  const [ca, cert, key] = await Promise.all(
    [files.authority, files.certificate, files.key].map((file) => readFile(file)),
  );
  const agent = new Agent({ ca, cert, key, keepAlive: false });
  return async (path, signal) => {
    const { promise, resolve, reject } = Promise.withResolvers<string>();
    const limit = AbortSignal.any([signal, AbortSignal.timeout(answerTimeoutMs)]);
    request({ host, port, path, agent, signal: limit }, (answer) => {
      text(answer).then((body) => {
        if (answer.statusCode === 200) resolve(body);
        else reject(new Error(`the API server answered ${answer.statusCode} to ${path}: ${body}`));
      }, reject);
    })
      .on('error', reject)
      .end();
    return await promise;
  };
}
