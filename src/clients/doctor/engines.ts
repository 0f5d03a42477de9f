import { errnoOf } from '#base/errno.ts';
import { readText, send, socketTarget } from '#base/http.ts';
import { type Check, type CheckContext, type Engine, type Finding, isAccessible, warn, yes } from './check.ts';

const maxAnswerBytes = 64 * 1024;

export const engines: Check = async (context, signal) => {
  const present = [];
  for (const engine of context.engines) if (await isAccessible(engine.socket)) present.push(engine);
  if (present.length === 0) {
    const detail = `none found (looked for ${context.engines.map((engine) => engine.socket).join(', ')})`;
    return [
      warn(
        'container engines',
        detail,
        'To give volumes to containers, start Docker, or: systemctl enable --now podman.socket',
      ),
    ];
  }
  return await Promise.all(present.map((engine) => checkEngine(engine, context, signal)));
};

async function checkEngine(engine: Engine, context: CheckContext, signal: AbortSignal): Promise<Finding> {
  using limit = context.clock.deadline(context.timeoutMs, signal);
  try {
    const answer: unknown = JSON.parse(await get(engine.socket, '/version', limit.signal));
    const version = typeof answer === 'object' && answer !== null && 'Version' in answer ? String(answer.Version) : '';
    return yes(engine.name, `answers at ${engine.socket}${/^[\w.+~-]+$/.test(version) ? `, version ${version}` : ''}`);
  } catch (cause) {
    const why = limit.signal.aborted ? 'timeout' : (errnoOf(cause) ?? String(cause));
    const fix =
      why === 'EACCES'
        ? `Run Stowage as a user that may use ${engine.socket} (root, or its group).`
        : `See whether it runs: systemctl status ${engine.name.split(' ')[0]?.toLowerCase()}`;
    return warn(engine.name, `${engine.socket} exists, but does not answer (${why})`, fix);
  }
}

async function get(socketPath: string, path: string, signal: AbortSignal): Promise<string> {
  const answer = await send(
    socketTarget(socketPath),
    { method: 'GET', path, headers: { host: 'localhost' }, agent: false },
    signal,
  );
  const body = await readText(answer, maxAnswerBytes);
  if (answer.statusCode === 200) return body;
  throw new Error(`status ${answer.statusCode}`);
}
